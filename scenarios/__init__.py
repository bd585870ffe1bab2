"""The experiment: scenarios, the plan, the engines and the command that runs them."""

"""Routes as OpenFlow rules, and the order in which the rules are sent to switches."""

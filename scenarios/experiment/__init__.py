"""An experiment from the command line to its results and its run directory."""

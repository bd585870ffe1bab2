"""Tools beside experiments: the doctor and the fault campaign."""

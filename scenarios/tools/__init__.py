"""What is beside experiments: the doctor, and the parts of the fault campaign."""

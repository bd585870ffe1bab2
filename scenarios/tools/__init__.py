"""Tools other than experiments: the doctor, the fault campaign, and parts that the commands of studies share."""

"""Routes as OpenFlow rules, and the order in which switches are given them."""

"""Which way the WAN carries a collective: path choice, flow rules and the OpenFlow app."""

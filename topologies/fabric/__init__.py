"""The declared network: sites, switches, WAN, logical links, addresses, and the effects of failed cables."""

"""The declared network: sites, switches, WAN, logical links, addresses, and what failed cables cut off."""

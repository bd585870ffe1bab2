"""Programs that studies and papers run: on the ranks' hosts, or as the VM's command."""

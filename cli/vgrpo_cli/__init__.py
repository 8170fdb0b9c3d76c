"""The command `vgrpo`: runs recipes, checks them, lists plugins, and shows ready recipes."""

"""`vgrpo compare`: objectives on one recipe, at equal cost, with the same seeds, prompts and noise."""

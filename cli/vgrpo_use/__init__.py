"""What to do with a finished run: draw with its weights, judge them, hand them on."""

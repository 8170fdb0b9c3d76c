"""`vgrpo report`: what a run, or several, learned, in one HTML file that opens from disk."""

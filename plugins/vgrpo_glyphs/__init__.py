"""The embedded model `builtin:glyphs`: a small genuine StableDiffusion3Pipeline that draws short coloured words.

The folder `model/` beside this file is what `from_pretrained` loads; `python -m vgrpo_glyphs.pretrain` makes it.
"""

"""Colours: those of matplotlib, with ink that can be read."""

import numpy as np
from matplotlib import colormaps

from mha_lesson.show import palette


def test_widget_colours_are_matplotlibs():
    for mine, name in ((palette.SEQUENTIAL, "cividis"), (palette.DIVERGING, "PuOr_r")):
        theirs = colormaps[name](np.linspace(0, 1, 9))[:, :3] * 255
        for colour, rgb in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(palette._rgb(colour), rgb, atol=1)


def test_ink_can_be_read_on_every_cell_colour():
    def luminance(colour):
        rgb = palette._rgb(colour) / 255
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    grounds = [palette.weight_colour(v, 1.0) for v in np.linspace(0, 1, 21)]
    grounds += [palette.signed_colour(v, 1.0) for v in np.linspace(-1, 1, 21)]
    for ground in [*grounds, *palette.HEAD_COLOURS, palette.weight_colour(np.nan, 1.0)]:
        a, b = sorted((luminance(ground), luminance(palette.ink_on(ground))))
        assert (b + 0.05) / (a + 0.05) >= 4.5, ground

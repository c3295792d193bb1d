// What every page does: live parts, theme, keys.

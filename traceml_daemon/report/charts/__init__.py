"""Charts as numbers: a summary goes in, shapes and labels come out; templates make SVG of them."""

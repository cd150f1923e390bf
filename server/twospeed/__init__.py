"""twospeed: a fast and a smart model behind one API, at more than one speed."""

__version__ = "0.1.0"

"""The configuration file as a whole: the sections of stores and views, and the model of all sections."""

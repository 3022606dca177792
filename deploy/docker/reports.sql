-- The database of sink `sql`, which capture does not read.
CREATE DATABASE reports;

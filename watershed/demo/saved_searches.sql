-- A saved search is a row like any other: an application adds, changes and removes it while the views are kept.
CREATE TABLE saved_searches (
  id          integer PRIMARY KEY,
  name        text NOT NULL,
  status      order_status NOT NULL,
  total_from  numeric(12,2) NOT NULL
);
INSERT INTO saved_searches VALUES
  (1, 'expensive and returned', 'returned', 400.00),
  (2, 'expensive and shipped', 'shipped', 495.00);

-- An online shop. One column at least for each kind of value that the path must carry: text, numbers, decimals,
-- doubles, timestamps with and without zone, dates, booleans, jsonb, arrays, uuid, an enum, null, a composite key.

CREATE TYPE order_status AS ENUM ('new', 'paid', 'packed', 'shipped', 'returned');

CREATE TABLE customers (
  id          bigint PRIMARY KEY,
  email       text NOT NULL,
  name        text NOT NULL,
  phone       text,
  born        date,
  loyal       boolean NOT NULL,
  credit      numeric(12,2) NOT NULL,
  interests   text[] NOT NULL,
  profile     jsonb,
  created_at  timestamptz NOT NULL,
  seen_at     timestamp
);

CREATE TABLE products (
  id             uuid PRIMARY KEY,
  sku            varchar(20) NOT NULL,
  title          text NOT NULL,
  description    text,
  price          numeric(12,2) NOT NULL,
  weight_kg      double precision,
  stock          integer NOT NULL,
  colors         text[],
  sizes          int[] NOT NULL,
  attributes     jsonb NOT NULL,
  active         boolean NOT NULL,
  available_from date,
  restocked_at   timestamp
);

CREATE TABLE orders (
  id           bigint PRIMARY KEY,
  customer_id  bigint NOT NULL REFERENCES customers ON UPDATE CASCADE,
  status       order_status NOT NULL,
  placed_at    timestamptz NOT NULL,
  due          date,
  total        numeric(12,2) NOT NULL,
  gift         boolean,
  note         text,
  paid_at      timestamp
);
CREATE INDEX ON orders (customer_id);

CREATE TABLE order_lines (
  order_id    bigint NOT NULL REFERENCES orders ON DELETE CASCADE,
  line_no     integer NOT NULL,
  product_id  uuid NOT NULL REFERENCES products,
  quantity    smallint NOT NULL,
  unit_price  numeric(12,2) NOT NULL,
  discount    double precision,
  serials     int[],
  options     jsonb,
  PRIMARY KEY (order_id, line_no)
);

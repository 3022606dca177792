-- One order of the demo shop, for pgbench: profile `demo` of docker-compose.yml.
\set customer random(1, 500)
\set product random(1, 100)
\set id random(1, 9000000000000000)
\set quantity random(1, 5)
BEGIN;
INSERT INTO customers (id, email, name, loyal, credit, interests, created_at)
  VALUES (:customer, 'customer' || :customer || '@example.org', 'Customer ' || :customer, false, 0, '{}', now())
  ON CONFLICT (id) DO UPDATE SET seen_at = now();
INSERT INTO products (id, sku, title, price, stock, sizes, attributes, active)
  VALUES (md5(:product::text)::uuid, 'P-' || :product, 'Product ' || :product, 9.90 + :product, 1000, '{}', '{}', true)
  ON CONFLICT (id) DO UPDATE SET stock = products.stock - :quantity;
INSERT INTO orders (id, customer_id, status, placed_at, total)
  VALUES (:id, :customer, 'new', now(), :quantity * (9.90 + :product));
INSERT INTO order_lines (order_id, line_no, product_id, quantity, unit_price)
  VALUES (:id, 1, md5(:product::text)::uuid, :quantity, 9.90 + :product);
UPDATE orders SET status = 'paid', paid_at = now()
  WHERE id = (SELECT id FROM orders WHERE customer_id = :customer AND status = 'new' ORDER BY id LIMIT 1);
COMMIT;

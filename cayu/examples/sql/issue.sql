INSERT INTO receipts (idempotency_key, number, detail)
VALUES (?, (SELECT coalesce(max(number), 0) + 1 FROM receipts), ?)
ON CONFLICT (idempotency_key) DO NOTHING

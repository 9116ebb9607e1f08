-- name: create_receipts
CREATE TABLE IF NOT EXISTS receipts (
    idempotency_key TEXT PRIMARY KEY,
    number INTEGER NOT NULL,
    detail TEXT NOT NULL
);

-- name: insert_receipt
INSERT INTO receipts (idempotency_key, number, detail)
VALUES (?, (SELECT coalesce(max(number), 0) + 1 FROM receipts), ?)
ON CONFLICT (idempotency_key) DO NOTHING;

-- name: receipt
SELECT number, detail FROM receipts WHERE idempotency_key = ?;

-- name: all_receipts
SELECT number, detail FROM receipts ORDER BY number;

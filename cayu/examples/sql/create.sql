CREATE TABLE IF NOT EXISTS receipts (
    idempotency_key TEXT PRIMARY KEY,
    number INTEGER NOT NULL,
    detail TEXT NOT NULL
)

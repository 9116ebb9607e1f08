CREATE TABLE IF NOT EXISTS parcels (
    number INTEGER PRIMARY KEY,
    reference TEXT NOT NULL,
    recipient TEXT NOT NULL
)

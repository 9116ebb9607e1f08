INSERT INTO parcels (reference, recipient) VALUES (?, ?)

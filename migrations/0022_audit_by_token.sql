-- Who made the entries of the audit log: when there are too many, each token's displace its own.
CREATE INDEX audit_by_token ON audit (namespace, token, seq);

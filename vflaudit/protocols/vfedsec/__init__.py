"""vFedSec: vertical federated learning whose first joint layer is summed under masks that cancel (the Secure Layer)."""

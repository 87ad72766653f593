"""APC-VFL: representations sent once, distilled into an encoder that the active party uses alone."""

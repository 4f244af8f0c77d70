"""Plain data drawn by matplotlib, as SVG and PDF."""

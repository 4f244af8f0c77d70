"""Figures drawn by matplotlib, as SVG and PDF."""

# SPDX-License-Identifier: Apache-2.0
"""A real two-node Kubernetes cluster on one machine, and what the end-to-end test needs around it."""

"""VFedTrans: federated representations of the shared rows, distilled into an encoder of the active party."""

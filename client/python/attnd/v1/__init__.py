"""Messages of attnd.v1: attnd_pb2.py, made from proto/attnd/v1/attnd.proto while the package is built."""

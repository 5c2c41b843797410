// RUN: k3c opt %s --split-input --expect-error | filecheck %s

// CHECK: comm.all_reduce: group: expected one of tp, found dp
func.func @all_reduce(%a: tensor<?x64xf32>) -> tensor<?x64xf32> {
  %r = "comm.all_reduce"(%a) {group = "dp"} : (tensor<?x64xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// -----
// CHECK: comm.all_gather: y: expected ?x318, found ?x212
func.func @all_gather(%a: tensor<?x106xf32>) -> tensor<?x212xf32> {
  %r = "comm.all_gather"(%a) {group = "tp", ranks = 3 : i64} : (tensor<?x106xf32>) -> tensor<?x212xf32>
  return %r : tensor<?x212xf32>
}

// -----
// CHECK: comm.reduce_scatter: x: expected ?x128, found ?x64
func.func @reduce_scatter(%a: tensor<?x64xf32>) -> tensor<?x32xf32> {
  %r = "comm.reduce_scatter"(%a) {group = "tp", ranks = 4 : i64} : (tensor<?x64xf32>) -> tensor<?x32xf32>
  return %r : tensor<?x32xf32>
}

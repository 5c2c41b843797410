// RUN: k3c opt %s | k3c opt - | filecheck %s

// CHECK-LABEL: @all_reduce(
// CHECK: "comm.all_reduce"({{.*}} -> tensor<?x64xf32>
func.func @all_reduce(%a: tensor<?x64xf32>) -> tensor<?x64xf32> {
  %r = "comm.all_reduce"(%a) {group = "tp"} : (tensor<?x64xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// CHECK-LABEL: @all_gather(
// CHECK: "comm.all_gather"({{.*}} -> tensor<?x212xf32>
func.func @all_gather(%a: tensor<?x106xf32>) -> tensor<?x212xf32> {
  %r = "comm.all_gather"(%a) {group = "tp", ranks = 2 : i64} : (tensor<?x106xf32>) -> tensor<?x212xf32>
  return %r : tensor<?x212xf32>
}

// CHECK-LABEL: @reduce_scatter(
// CHECK: "comm.reduce_scatter"({{.*}} -> tensor<?x32xf32>
func.func @reduce_scatter(%a: tensor<?x64xf32>) -> tensor<?x32xf32> {
  %r = "comm.reduce_scatter"(%a) {group = "tp", ranks = 2 : i64} : (tensor<?x64xf32>) -> tensor<?x32xf32>
  return %r : tensor<?x32xf32>
}

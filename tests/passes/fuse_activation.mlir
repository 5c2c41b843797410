// RUN: k3c opt %s -p fuse-activation | filecheck %s

// CHECK-LABEL: @situ(
// CHECK-NEXT: %[[Y:.*]] = "k3.gated_linear"(%arg0, %arg1) {activation = "situ", beta = 4.{{.*}}, linear_beta = 2.5{{.*}}} : (tensor<?x8xf32>, tensor<12x8xf32>) -> tensor<?x6xf32>
// CHECK-NEXT: return %[[Y]]
func.func @situ(%x: tensor<?x8xf32>, %w: tensor<12x8xf32>) -> tensor<?x6xf32> {
  %y = "k3.linear"(%x, %w) {epilogue = "none", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<?x8xf32>, tensor<12x8xf32>) -> tensor<?x12xf32>
  %g = "k3.columns"(%y) {offset = 0 : i64} : (tensor<?x12xf32>) -> tensor<?x6xf32>
  %u = "k3.columns"(%y) {offset = 6 : i64} : (tensor<?x12xf32>) -> tensor<?x6xf32>
  %a = "k3.situ"(%g, %u) {beta = 4.0 : f64, linear_beta = 25.0 : f64} : (tensor<?x6xf32>, tensor<?x6xf32>) -> tensor<?x6xf32>
  return %a : tensor<?x6xf32>
}

// The projection is needed elsewhere.
// CHECK-LABEL: @shared(
// CHECK: "k3.silu_mul"
func.func @shared(%x: tensor<?x8xf32>, %w: tensor<12x8xf32>) -> (tensor<?x6xf32>, tensor<?x12xf32>) {
  %y = "k3.linear"(%x, %w) {epilogue = "none", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<?x8xf32>, tensor<12x8xf32>) -> tensor<?x12xf32>
  %g = "k3.columns"(%y) {offset = 0 : i64} : (tensor<?x12xf32>) -> tensor<?x6xf32>
  %u = "k3.columns"(%y) {offset = 6 : i64} : (tensor<?x12xf32>) -> tensor<?x6xf32>
  %a = "k3.silu_mul"(%g, %u) : (tensor<?x6xf32>, tensor<?x6xf32>) -> tensor<?x6xf32>
  return %a, %y : tensor<?x6xf32>, tensor<?x12xf32>
}

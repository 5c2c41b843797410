// RUN: k3c opt %s -p fuse-residual | filecheck %s

// CHECK-LABEL: @add(
// CHECK-NEXT: "k3.linear"(%arg0, %arg1, %arg2) {epilogue = "add"
// CHECK-NEXT: return
func.func @add(%x: tensor<?x8xf32>, %w: tensor<4x8xf32>, %r: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %l = "k3.linear"(%x, %w) {epilogue = "none", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<?x8xf32>, tensor<4x8xf32>) -> tensor<?x4xf32>
  %y = "k3.add"(%r, %l) : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  return %y : tensor<?x4xf32>
}

// The map has another reader: nothing is fused.
// CHECK-LABEL: @shared(
// CHECK: epilogue = "none"
// CHECK: "k3.add"
func.func @shared(%x: tensor<?x8xf32>, %w: tensor<4x8xf32>, %r: tensor<?x4xf32>) -> (tensor<?x4xf32>, tensor<?x4xf32>) {
  %l = "k3.linear"(%x, %w) {epilogue = "none", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<?x8xf32>, tensor<4x8xf32>) -> tensor<?x4xf32>
  %y = "k3.add"(%r, %l) : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  return %y, %l : tensor<?x4xf32>, tensor<?x4xf32>
}

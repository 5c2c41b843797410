// RUN: k3c opt %s -p fuse-part-norm | filecheck %s

// CHECK-LABEL: @part
// CHECK-NOT: k3.rms_norm
// CHECK: %[[Y:.*]] = "k3.norm_linear"(%arg0, %arg1, %arg2, %arg3) {eps = 9.9{{.*}}E-7 : f64, {{.*}}part = "rank"}
// CHECK: return %[[Y]]
func.func @part(%x: tensor<?x8xf32>, %g: tensor<8xf32>, %w: tensor<6x4xf32>, %r: tensor<?x6xf32>) -> tensor<?x6xf32> {
  %n = "k3.rms_norm"(%x, %g) {eps = 1.0e-6 : f64, part = "rank"} : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x4xf32>
  %y = "k3.linear"(%n, %w, %r) {epilogue = "add", operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<?x4xf32>, tensor<6x4xf32>, tensor<?x6xf32>) -> tensor<?x6xf32>
  return %y : tensor<?x6xf32>
}

// A whole norm stays for itself.
// CHECK-LABEL: @whole
// CHECK: k3.rms_norm
// CHECK: k3.linear
func.func @whole(%x: tensor<?x8xf32>, %g: tensor<8xf32>, %w: tensor<6x8xf32>) -> tensor<?x6xf32> {
  %n = "k3.rms_norm"(%x, %g) {eps = 1.0e-6 : f64} : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  %y = "k3.linear"(%n, %w) {epilogue = "none", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<?x8xf32>, tensor<6x8xf32>) -> tensor<?x6xf32>
  return %y : tensor<?x6xf32>
}

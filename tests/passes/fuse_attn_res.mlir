// RUN: k3c opt %s -p fuse-attn-res | filecheck %s

// The add goes along where the mix is its first reader.
// CHECK-LABEL: @mix(
// CHECK-NEXT: %[[R:.*]]:2 = "attn_res.mix_norm"(%arg0, %arg5, %arg2, %arg4, %arg3, %arg1) {eps = 1.000000e-05 : f64, {{.*}}, out_eps = 2.000000e-05 : f64}
// CHECK-NEXT: return %[[R]]#1, %[[R]]#0
func.func @mix(%p: tensor<?x8xf32>, %f: tensor<?x8xf32>, %b: tensor<?x8xf32>, %norm: tensor<8xf32>, %query: tensor<8xf32>, %w: tensor<8xf32>) -> (tensor<?x8xf32>, tensor<?x8xf32>) {
  %s = "k3.add"(%p, %f) : (tensor<?x8xf32>, tensor<?x8xf32>) -> tensor<?x8xf32>
  %m = "k3.attn_res_mix"(%norm, %query, %b, %s) {eps = 1.0e-5 : f64, operandSegmentSizes = array<i32: 1, 1, 2>} : (tensor<8xf32>, tensor<8xf32>, tensor<?x8xf32>, tensor<?x8xf32>) -> tensor<?x8xf32>
  %y = "k3.rms_norm"(%m, %w) {eps = 2.0e-5 : f64} : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  return %y, %s : tensor<?x8xf32>, tensor<?x8xf32>
}

// Someone reads the sum before the norm: the add stays.
// CHECK-LABEL: @needed(
// CHECK-NEXT: %[[S:.*]] = "k3.add"
// CHECK-NEXT: %[[U:.*]] = "k3.silu"(%[[S]])
// CHECK-NEXT: %[[Y:.*]] = "k3.rms_norm"(%[[S]], %arg2)
func.func @needed(%p: tensor<?x8xf32>, %f: tensor<?x8xf32>, %w: tensor<8xf32>) -> (tensor<?x8xf32>, tensor<?x8xf32>) {
  %s = "k3.add"(%p, %f) : (tensor<?x8xf32>, tensor<?x8xf32>) -> tensor<?x8xf32>
  %u = "k3.silu"(%s) : (tensor<?x8xf32>) -> tensor<?x8xf32>
  %y = "k3.rms_norm"(%s, %w) {eps = 2.0e-5 : f64} : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  return %y, %u : tensor<?x8xf32>, tensor<?x8xf32>
}

// A plain pre-norm residual is the case without snapshots.
// CHECK-LABEL: @plain(
// CHECK-NEXT: %[[R:.*]]:2 = "attn_res.mix_norm"(%arg0, %arg2, %arg1)
// CHECK-SAME: operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 1>
func.func @plain(%p: tensor<?x8xf32>, %f: tensor<?x8xf32>, %w: tensor<8xf32>) -> (tensor<?x8xf32>, tensor<?x8xf32>) {
  %s = "k3.add"(%p, %f) : (tensor<?x8xf32>, tensor<?x8xf32>) -> tensor<?x8xf32>
  %y = "k3.rms_norm"(%s, %w) {eps = 2.0e-5 : f64} : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  return %y, %s : tensor<?x8xf32>, tensor<?x8xf32>
}

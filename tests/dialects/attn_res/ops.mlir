// RUN: k3c opt %s | k3c opt - | filecheck %s

// CHECK-LABEL: @mix_norm(
// CHECK: "attn_res.mix_norm"({{.*}} -> (tensor<?x64xf32>, tensor<?x64xf32>)
func.func @mix_norm(%a: tensor<?x64xf32>, %b: tensor<64xf32>, %c: tensor<?x64xf32>, %d: tensor<64xf32>, %e: tensor<64xf32>, %f: tensor<?x64xf32>) -> (tensor<?x64xf32>, tensor<?x64xf32>) {
  %r:2 = "attn_res.mix_norm"(%a, %b, %c, %d, %e, %f) {eps = 1.000000e-05 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1>, out_eps = 1.000000e-05 : f64} : (tensor<?x64xf32>, tensor<64xf32>, tensor<?x64xf32>, tensor<64xf32>, tensor<64xf32>, tensor<?x64xf32>) -> (tensor<?x64xf32>, tensor<?x64xf32>)
  return %r#0, %r#1 : tensor<?x64xf32>, tensor<?x64xf32>
}

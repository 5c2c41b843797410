// RUN: k3c opt %s -p "partition{tp=3}" --split-input --expect-error | filecheck %s
// RUN: k3c opt %s -p "partition{tp=4,ep=3}" --split-input --expect-error | filecheck %s --check-prefix=EP

// CHECK: K3-P004
// CHECK: where: gate, axis 0
// CHECK: expected: a multiple of 3
// CHECK: found: 16
// EP: expected: ep divides tp
func.func @width(%y: tensor<?x8xf32>) -> tensor<?x16xf32> {
  %g = "k3.weight"() {param = "gate", source = {tensor = "mlp.gate_proj.weight"}} : () -> tensor<16x8xf32>
  %0 = "k3.linear"(%y, %g) {epilogue = "none", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<?x8xf32>, tensor<16x8xf32>) -> tensor<?x16xf32>
  return %0 : tensor<?x16xf32>
}
// -----
// CHECK: where: MLA heads over tp=3
// CHECK: expected: a head count that 3 divides
// CHECK: found: 2
func.func @heads(%q: tensor<?x12xf32>, %kv_b: tensor<20x8xf32>, %cache: tensor<?x16x10xf32>, %batch: !k3.batch) -> tensor<?x12xf32> {
  %o = "k3.mla_attention"(%q, %kv_b, %cache, %batch) {num_heads = 2 : i64, nope_dim = 4 : i64, rope_dim = 2 : i64, v_dim = 6 : i64, scale = 0.4 : f64} : (tensor<?x12xf32>, tensor<20x8xf32>, tensor<?x16x10xf32>, !k3.batch) -> tensor<?x12xf32>
  return %o : tensor<?x12xf32>
}

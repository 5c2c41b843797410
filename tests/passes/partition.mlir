// RUN: k3c opt %s -p "partition{tp=4,ep=2}" | filecheck %s
// RUN: k3c opt %s -p "partition{tp=1}" | filecheck %s --check-prefix=ONE

// ONE-NOT: rank
// ONE-NOT: comm.

// Rows of gate and up, columns of down; the sum behind down. Experts over two halves, widths inside a half; the
// latent's sum before its norm.
// CHECK: "k3.weight"() {param = "gate", source = {slice = {{\[\[}}"rank*4", "rank*4+4"]], tensor = "mlp.gate_proj.weight"}} : () -> tensor<4x8xf32>
// CHECK: "k3.silu_mul"({{.*}} -> tensor<?x4xf32>
// CHECK: {slice = [unit, ["rank*4", "rank*4+4"]], tensor = "mlp.down_proj.weight"}} : () -> tensor<8x4xf32>
// CHECK: %[[D:.*]] = "k3.linear"(
// CHECK-NEXT: %[[A:.*]] = "comm.all_reduce"(%[[D]]) {group = "tp"}
// CHECK: stack = {count = 2 : i64, first = "rank//2*2", name = "e.{e}.w1.weight", slice = {{\[\[}}"rank%2*32", "rank%2*32+32"]]}}} : () -> tensor<2x32x8xf32>
// CHECK: stack = {count = 2 : i64, first = "rank//2*2", name = "e.{e}.w2.weight", slice = [unit, ["rank%2*32", "rank%2*32+32"]]}}} : () -> tensor<2x8x32xf32>
// CHECK: %[[R:.*]] = "k3.experts"(%[[A]], {{.*}}first_expert = "rank//2*2"
// CHECK-NEXT: %[[S:.*]] = "comm.all_reduce"(%[[R]]) {group = "tp"}
// CHECK-NEXT: "k3.rms_norm"(%[[S]],
func.func @model(%y: tensor<?x8xf32>, %ids: tensor<?x2xi32>, %weights: tensor<?x2xf32>, %norm: tensor<8xf32>) -> tensor<?x8xf32> {
  %g = "k3.weight"() {param = "gate", source = {tensor = "mlp.gate_proj.weight"}} : () -> tensor<16x8xf32>
  %0 = "k3.linear"(%y, %g) {epilogue = "none", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<?x8xf32>, tensor<16x8xf32>) -> tensor<?x16xf32>
  %1 = "k3.silu_mul"(%0, %0) : (tensor<?x16xf32>, tensor<?x16xf32>) -> tensor<?x16xf32>
  %d = "k3.weight"() {param = "down", source = {tensor = "mlp.down_proj.weight"}} : () -> tensor<8x16xf32>
  %2 = "k3.linear"(%1, %d) {epilogue = "none", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<?x16xf32>, tensor<8x16xf32>) -> tensor<?x8xf32>
  %w1 = "k3.weight"() {param = "w1", source = {stack = {name = "e.{e}.w1.weight", first = 0 : i64, count = 4 : i64}}} : () -> tensor<4x64x8xf32>
  %w2 = "k3.weight"() {param = "w2", source = {stack = {name = "e.{e}.w2.weight", first = 0 : i64, count = 4 : i64}}} : () -> tensor<4x8x64xf32>
  %r = "k3.experts"(%2, %ids, %weights, %w1, %w1, %w2) {activation = "silu", format = "plain", operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 0, 0, 0>} : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, tensor<4x64x8xf32>, tensor<4x64x8xf32>, tensor<4x8x64xf32>) -> tensor<?x8xf32>
  %n = "k3.rms_norm"(%r, %norm) {eps = 1.0e-5 : f64} : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  return %n : tensor<?x8xf32>
}

// RUN: k3c opt %s -p fuse-projections | filecheck %s

// Narrow b goes last, rows are filled to 48; q and v beside each other are one view.
// CHECK-LABEL: @projections(
// CHECK-NEXT: %[[W:.*]] = "k3.weight"() {param = "layers.0.self_attn.q_proj+v_proj+b_proj", source = {of = {axis = 0 : i64, concat = [{tensor = "q"}, {tensor = "v"}, {tensor = "b"}]}, pad = {{\[\[}}0, 13], [0, 0]]}} : () -> tensor<48x8xf32>
// CHECK-NEXT: %[[Y:.*]] = "k3.linear"(%arg0, %[[W]])
// CHECK-DAG: %[[B:.*]] = "k3.columns"(%[[Y]]) {offset = 32 : i64} : (tensor<?x48xf32>) -> tensor<?x3xf32>
// CHECK-DAG: %[[QV:.*]] = "k3.columns"(%[[Y]]) {offset = 0 : i64} : (tensor<?x48xf32>) -> tensor<?x32xf32>
// CHECK: return %[[QV]], %[[B]]
func.func @projections(%x: tensor<?x8xf32>) -> (tensor<?x32xf32>, tensor<?x3xf32>) {
  %q = "k3.weight"() {param = "layers.0.self_attn.q_proj", source = {tensor = "q"}} : () -> tensor<16x8xf32>
  %0 = "k3.linear"(%x, %q) {epilogue = "none", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<?x8xf32>, tensor<16x8xf32>) -> tensor<?x16xf32>
  %b = "k3.weight"() {param = "layers.0.self_attn.b_proj", source = {tensor = "b"}} : () -> tensor<3x8xf32>
  %1 = "k3.linear"(%x, %b) {epilogue = "none", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<?x8xf32>, tensor<3x8xf32>) -> tensor<?x3xf32>
  %v = "k3.weight"() {param = "layers.0.self_attn.v_proj", source = {tensor = "v"}} : () -> tensor<16x8xf32>
  %2 = "k3.linear"(%x, %v) {epilogue = "none", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<?x8xf32>, tensor<16x8xf32>) -> tensor<?x16xf32>
  %3 = "k3.concat"(%0, %2) {operandSegmentSizes = array<i32: 2>} : (tensor<?x16xf32>, tensor<?x16xf32>) -> tensor<?x32xf32>
  return %3, %1 : tensor<?x32xf32>, tensor<?x3xf32>
}

// Gate and up are a pair of their own, not filled up; another map of the same input stays apart.
// CHECK-LABEL: @pair(
// CHECK: "k3.weight"() {param = "mlp.gate_proj+up_proj", {{.*}} : () -> tensor<10x8xf32>
// CHECK: "k3.weight"() {param = "down"
func.func @pair(%x: tensor<?x8xf32>) -> (tensor<?x5xf32>, tensor<?x7xf32>) {
  %g = "k3.weight"() {param = "mlp.gate_proj", source = {tensor = "g"}} : () -> tensor<5x8xf32>
  %0 = "k3.linear"(%x, %g) {epilogue = "none", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<?x8xf32>, tensor<5x8xf32>) -> tensor<?x5xf32>
  %u = "k3.weight"() {param = "mlp.up_proj", source = {tensor = "u"}} : () -> tensor<5x8xf32>
  %1 = "k3.linear"(%x, %u) {epilogue = "none", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<?x8xf32>, tensor<5x8xf32>) -> tensor<?x5xf32>
  %d = "k3.weight"() {param = "down", source = {tensor = "d"}} : () -> tensor<7x8xf32>
  %2 = "k3.linear"(%x, %d) {epilogue = "none", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<?x8xf32>, tensor<7x8xf32>) -> tensor<?x7xf32>
  %3 = "k3.silu_mul"(%0, %1) : (tensor<?x5xf32>, tensor<?x5xf32>) -> tensor<?x5xf32>
  return %3, %2 : tensor<?x5xf32>, tensor<?x7xf32>
}

// A query that MLA reads directly stays alone (Kimi-Linear has no low-rank step); kv_a and another map go together.
// CHECK-LABEL: @query(
// CHECK-DAG: "k3.weight"() {param = "q_proj"
// CHECK-DAG: "k3.weight"() {param = "kv_a+g"
func.func @query(%x: tensor<?x8xf32>, %kvb: tensor<20x6xf32>) -> (tensor<?x12xf32>, tensor<?x8xf32>, tensor<?x8xf32>) {
  %q = "k3.weight"() {param = "q_proj", source = {tensor = "q"}} : () -> tensor<12x8xf32>
  %0 = "k3.linear"(%x, %q) {epilogue = "none", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<?x8xf32>, tensor<12x8xf32>) -> tensor<?x12xf32>
  %a = "k3.weight"() {param = "kv_a", source = {tensor = "a"}} : () -> tensor<8x8xf32>
  %1 = "k3.linear"(%x, %a) {epilogue = "none", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<?x8xf32>, tensor<8x8xf32>) -> tensor<?x8xf32>
  %g = "k3.weight"() {param = "g", source = {tensor = "g"}} : () -> tensor<8x8xf32>
  %2 = "k3.linear"(%x, %g) {epilogue = "none", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<?x8xf32>, tensor<8x8xf32>) -> tensor<?x8xf32>
  %3 = "mla.absorb_q"(%0, %kvb) {num_heads = 2 : i64, nope_dim = 4 : i64, rope_dim = 2 : i64} : (tensor<?x12xf32>, tensor<20x6xf32>) -> tensor<?x12xf32>
  return %3, %1, %2 : tensor<?x12xf32>, tensor<?x8xf32>, tensor<?x8xf32>
}

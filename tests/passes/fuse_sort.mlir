// RUN: k3c opt %s -p fuse-sort | filecheck %s

// CHECK-NOT: moe.route_topk
// CHECK: %[[R:.*]]:5 = "moe.route"(%arg0, %arg1) {block_rows = 16 : i64, first_expert = "rank*5", num_experts = 5 : i64, renormalize = true, scale = 2.446{{.*}}, top_k = 3 : i64}
// CHECK-NOT: moe.sort
// CHECK: return %[[R]]#0, %[[R]]#1, %[[R]]#2, %[[R]]#3, %[[R]]#4
func.func @route(%logits: tensor<?x10xf32>, %bias: tensor<10xf32>) -> (tensor<?x3xf32>, tensor<?x3xi32>, tensor<?xi32>, tensor<?xi32>, tensor<1xi32>) {
  %r:2 = "moe.route_topk"(%logits, %bias) {renormalize = true, scale = 2.446 : f64, top_k = 3 : i64} : (tensor<?x10xf32>, tensor<10xf32>) -> (tensor<?x3xf32>, tensor<?x3xi32>)
  %s:3 = "moe.sort"(%r#1) {block_rows = 16 : i64, first_expert = "rank*5", num_experts = 5 : i64} : (tensor<?x3xi32>) -> (tensor<?xi32>, tensor<?xi32>, tensor<1xi32>)
  return %r#0, %r#1, %s#0, %s#1, %s#2 : tensor<?x3xf32>, tensor<?x3xi32>, tensor<?xi32>, tensor<?xi32>, tensor<1xi32>
}

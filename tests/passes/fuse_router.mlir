// RUN: k3c opt %s -p fuse-router | filecheck %s

// CHECK-NOT: k3.sigmoid
// CHECK: "moe.route_topk"(%arg0, %arg1) {renormalize = true, scale = 2.446{{.*}}, top_k = 3 : i64}
func.func @route(%logits: tensor<?x10xf32>, %bias: tensor<10xf32>) -> (tensor<?x3xf32>, tensor<?x3xi32>) {
  %s = "k3.sigmoid"(%logits) : (tensor<?x10xf32>) -> tensor<?x10xf32>
  %r:2 = "k3.route"(%s, %bias) {renormalize = true, scale = 2.446 : f64, top_k = 3 : i64} : (tensor<?x10xf32>, tensor<10xf32>) -> (tensor<?x3xf32>, tensor<?x3xi32>)
  return %r#0, %r#1 : tensor<?x3xf32>, tensor<?x3xi32>
}

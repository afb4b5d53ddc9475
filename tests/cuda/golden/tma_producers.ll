  %t29 = addrspacecast ptr %t28 to ptr addrspace(3)
  call void @llvm.nvvm.mbarrier.init.shared(ptr addrspace(3) %t29, i32 1)
  %t30 = getelementptr inbounds i8, ptr %t24, i64 8
  %t31 = addrspacecast ptr %t30 to ptr addrspace(3)
  call void @llvm.nvvm.mbarrier.init.shared(ptr addrspace(3) %t31, i32 1)
  %t32 = getelementptr inbounds i8, ptr %t24, i64 16
  %t33 = addrspacecast ptr %t32 to ptr addrspace(3)
  call void @llvm.nvvm.mbarrier.init.shared(ptr addrspace(3) %t33, i32 1)
  %t34 = getelementptr inbounds i8, ptr %t24, i64 24
  %t35 = addrspacecast ptr %t34 to ptr addrspace(3)
  call void @llvm.nvvm.mbarrier.init.shared(ptr addrspace(3) %t35, i32 1)
  %t36 = getelementptr inbounds i8, ptr %t24, i64 32
  %t37 = addrspacecast ptr %t36 to ptr addrspace(3)
  call void @llvm.nvvm.mbarrier.init.shared(ptr addrspace(3) %t37, i32 4)
  %t38 = getelementptr inbounds i8, ptr %t24, i64 40
  %t39 = addrspacecast ptr %t38 to ptr addrspace(3)
  call void @llvm.nvvm.mbarrier.init.shared(ptr addrspace(3) %t39, i32 4)
  %t40 = getelementptr inbounds i8, ptr %t24, i64 48
  %t41 = addrspacecast ptr %t40 to ptr addrspace(3)
  call void @llvm.nvvm.mbarrier.init.shared(ptr addrspace(3) %t41, i32 4)
  %t42 = getelementptr inbounds i8, ptr %t24, i64 56
  %t43 = addrspacecast ptr %t42 to ptr addrspace(3)
  call void @llvm.nvvm.mbarrier.init.shared(ptr addrspace(3) %t43, i32 4)
  br label %b27
b27:
  call void asm sideeffect "fence.proxy.async.shared::cta;", "~{memory}"()
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %t47 = icmp uge i32 %t18, 128
  br i1 %t47, label %b44, label %b45
b44:
  br label %b48
b48:
  %t50 = phi i64 [ 0, %b44 ], [ %t51, %b52 ]
  %t53 = trunc i64 %t50 to i32
  %t54 = sext i32 %t53 to i64
  %t55 = and i64 %t54, 3
  %t56 = ashr i64 %t54, 2
  %t57 = mul nsw i64 %t55, 8
  %t58 = getelementptr inbounds i8, ptr %t24, i64 %t57
  %t59 = addrspacecast ptr %t58 to ptr addrspace(3)
  %t60 = add nsw i64 %t57, 32
  %t61 = getelementptr inbounds i8, ptr %t24, i64 %t60
  %t62 = addrspacecast ptr %t61 to ptr addrspace(3)
  %t63 = trunc i64 %t56 to i32
  %t64 = and i32 %t63, 1
  %t65 = xor i32 %t64, 1
  br label %b66
b66:
  %t68 = call i1 @llvm.nvvm.mbarrier.try.wait.parity.scope.cta.space.cta(ptr addrspace(3) %t62, i32 %t65)
  br i1 %t68, label %b67, label %b66
b67:
  %t70 = icmp eq i32 %t69, 0
  br i1 %t70, label %b71, label %b72
b71:
  %t73 = call i64 @llvm.nvvm.mbarrier.arrive.expect.tx.scope.cta.space.cta(ptr addrspace(3) %t59, i32 16384)
  %t74 = and i32 %t53, 3
  %t75 = sext i32 %t74 to i64
  %t76 = mul nsw i64 %t75, 8192
  %t77 = getelementptr inbounds i8, ptr %t3, i64 %t76
  %t78 = mul i32 %t15, 64
  %t79 = mul i32 %t53, 64
  %t80 = getelementptr inbounds i8, ptr %t77, i64 0
  %t81 = addrspacecast ptr %t80 to ptr addrspace(3)
  call void asm sideeffect "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1, {$2, $3}], [$4];", "r,l,r,r,r,~{memory}"(ptr addrspace(3) %t81, ptr %p3, i32 %t79, i32 %t78, ptr addrspace(3) %t59)
  %t82 = mul nsw i64 %t75, 8192
  %t83 = getelementptr inbounds i8, ptr %t2, i64 %t82
  %t84 = mul i32 %t53, 64
  %t85 = mul i32 %t16, 64
  %t86 = getelementptr inbounds i8, ptr %t83, i64 0
  %t87 = addrspacecast ptr %t86 to ptr addrspace(3)
  call void asm sideeffect "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1, {$2, $3}], [$4];", "r,l,r,r,r,~{memory}"(ptr addrspace(3) %t87, ptr %p4, i32 %t85, i32 %t84, ptr addrspace(3) %t59)
  br label %b72
b72:
  br label %b52
b52:
  %t51 = add nsw i64 %t50, 1
  %t88 = icmp slt i64 %t51, 8
  br i1 %t88, label %b48, label %b49
b49:
  call void @llvm.nvvm.bar.warp.sync(i32 -1)

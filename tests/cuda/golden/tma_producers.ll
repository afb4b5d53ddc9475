  %t28 = addrspacecast ptr %t27 to ptr addrspace(3)
  call void @llvm.nvvm.mbarrier.init.shared(ptr addrspace(3) %t28, i32 1)
  %t29 = getelementptr inbounds i8, ptr %t23, i64 8
  %t30 = addrspacecast ptr %t29 to ptr addrspace(3)
  call void @llvm.nvvm.mbarrier.init.shared(ptr addrspace(3) %t30, i32 1)
  %t31 = getelementptr inbounds i8, ptr %t23, i64 16
  %t32 = addrspacecast ptr %t31 to ptr addrspace(3)
  call void @llvm.nvvm.mbarrier.init.shared(ptr addrspace(3) %t32, i32 1)
  %t33 = getelementptr inbounds i8, ptr %t23, i64 24
  %t34 = addrspacecast ptr %t33 to ptr addrspace(3)
  call void @llvm.nvvm.mbarrier.init.shared(ptr addrspace(3) %t34, i32 1)
  %t35 = getelementptr inbounds i8, ptr %t23, i64 32
  %t36 = addrspacecast ptr %t35 to ptr addrspace(3)
  call void @llvm.nvvm.mbarrier.init.shared(ptr addrspace(3) %t36, i32 4)
  %t37 = getelementptr inbounds i8, ptr %t23, i64 40
  %t38 = addrspacecast ptr %t37 to ptr addrspace(3)
  call void @llvm.nvvm.mbarrier.init.shared(ptr addrspace(3) %t38, i32 4)
  %t39 = getelementptr inbounds i8, ptr %t23, i64 48
  %t40 = addrspacecast ptr %t39 to ptr addrspace(3)
  call void @llvm.nvvm.mbarrier.init.shared(ptr addrspace(3) %t40, i32 4)
  %t41 = getelementptr inbounds i8, ptr %t23, i64 56
  %t42 = addrspacecast ptr %t41 to ptr addrspace(3)
  call void @llvm.nvvm.mbarrier.init.shared(ptr addrspace(3) %t42, i32 4)
  br label %b26
b26:
  call void asm sideeffect "fence.proxy.async.shared::cta;", "~{memory}"()
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %t46 = icmp uge i32 %t17, 128
  br i1 %t46, label %b43, label %b44
b43:
  br label %b47
b47:
  %t49 = phi i64 [ 0, %b43 ], [ %t50, %b51 ]
  %t52 = trunc i64 %t49 to i32
  %t53 = sext i32 %t52 to i64
  %t54 = and i64 %t53, 3
  %t55 = ashr i64 %t53, 2
  %t56 = mul nsw i64 %t54, 8
  %t57 = getelementptr inbounds i8, ptr %t23, i64 %t56
  %t58 = addrspacecast ptr %t57 to ptr addrspace(3)
  %t59 = add nsw i64 %t56, 32
  %t60 = getelementptr inbounds i8, ptr %t23, i64 %t59
  %t61 = addrspacecast ptr %t60 to ptr addrspace(3)
  %t62 = trunc i64 %t55 to i32
  %t63 = and i32 %t62, 1
  %t64 = xor i32 %t63, 1
  br label %b65
b65:
  %t67 = call i1 @llvm.nvvm.mbarrier.try.wait.parity.scope.cta.space.cta(ptr addrspace(3) %t61, i32 %t64)
  br i1 %t67, label %b66, label %b65
b66:
  %t69 = icmp eq i32 %t68, 0
  br i1 %t69, label %b70, label %b71
b70:
  %t72 = call i64 @llvm.nvvm.mbarrier.arrive.expect.tx.scope.cta.space.cta(ptr addrspace(3) %t58, i32 16384)
  %t73 = and i32 %t52, 3
  %t74 = sext i32 %t73 to i64
  %t75 = mul nsw i64 %t74, 8192
  %t76 = getelementptr inbounds i8, ptr %t3, i64 %t75
  %t77 = mul i32 %t15, 64
  %t78 = mul i32 %t52, 64
  %t79 = getelementptr inbounds i8, ptr %t76, i64 0
  %t80 = addrspacecast ptr %t79 to ptr addrspace(3)
  call void asm sideeffect "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1, {$2, $3}], [$4];", "r,l,r,r,r,~{memory}"(ptr addrspace(3) %t80, ptr %p3, i32 %t78, i32 %t77, ptr addrspace(3) %t58)
  %t81 = mul nsw i64 %t74, 8192
  %t82 = getelementptr inbounds i8, ptr %t2, i64 %t81
  %t83 = mul i32 %t52, 64
  %t84 = mul i32 %t16, 64
  %t85 = getelementptr inbounds i8, ptr %t82, i64 0
  %t86 = addrspacecast ptr %t85 to ptr addrspace(3)
  call void asm sideeffect "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1, {$2, $3}], [$4];", "r,l,r,r,r,~{memory}"(ptr addrspace(3) %t86, ptr %p4, i32 %t84, i32 %t83, ptr addrspace(3) %t58)
  br label %b71
b71:
  br label %b51
b51:
  %t50 = add nsw i64 %t49, 1
  %t87 = icmp slt i64 %t50, 8
  br i1 %t87, label %b47, label %b48
b48:
  call void @llvm.nvvm.bar.warp.sync(i32 -1)

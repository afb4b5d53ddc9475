target triple = "x86_64-unknown-linux-gnu"

define void @exp(ptr %p0, ptr %p1, i64 %p2) #0 {
entry:
  %t47 = alloca {ptr, ptr, i64}, align 8
  %t46 = ashr i64 %p2, 6
  %t48 = getelementptr {ptr, ptr, i64}, ptr %t47, i32 0, i32 0
  store ptr %p0, ptr %t48
  %t49 = getelementptr {ptr, ptr, i64}, ptr %t47, i32 0, i32 1
  store ptr %p1, ptr %t49
  %t50 = getelementptr {ptr, ptr, i64}, ptr %t47, i32 0, i32 2
  store i64 %p2, ptr %t50
  call void @kiln_parallel_for(ptr @exp.body0.entry, ptr %t47, i64 %t46)
  %t51 = mul i64 %t46, 64
  %t52 = and i64 %p2, 63
  %t53 = add i64 %t51, %t52
  %t56 = icmp slt i64 %t51, %t53
  br i1 %t56, label %b54, label %b55
b54:
  %t57 = phi i64 [ %t51, %entry ], [ %t58, %b59 ]
  %t60 = mul nsw i64 %t57, 16
  %t61 = getelementptr inbounds i8, ptr %p0, i64 %t60
  %t62 = load <4 x float>, ptr %t61, align 4
  %t63 = fcmp ogt <4 x float> <float 0xC05A000000000000, float 0xC05A000000000000, float 0xC05A000000000000, float 0xC05A000000000000>, %t62
  %t64 = select <4 x i1> %t63, <4 x float> <float 0xC05A000000000000, float 0xC05A000000000000, float 0xC05A000000000000, float 0xC05A000000000000>, <4 x float> %t62
  %t65 = fcmp olt <4 x float> <float 0x4056400000000000, float 0x4056400000000000, float 0x4056400000000000, float 0x4056400000000000>, %t64
  %t66 = select <4 x i1> %t65, <4 x float> <float 0x4056400000000000, float 0x4056400000000000, float 0x4056400000000000, float 0x4056400000000000>, <4 x float> %t64
  %t67 = fcmp olt <4 x float> %t66, <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>
  %t68 = select <4 x i1> %t67, <4 x float> <float 0x4168001300000000, float 0x4168001300000000, float 0x4168001300000000, float 0x4168001300000000>, <4 x float> <float 0x4168000FC0000000, float 0x4168000FC0000000, float 0x4168000FC0000000, float 0x4168000FC0000000>
  %t69 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t66, <4 x float> <float 0x3FF7154760000000, float 0x3FF7154760000000, float 0x3FF7154760000000, float 0x3FF7154760000000>, <4 x float> %t68)
  %t70 = fsub contract <4 x float> %t69, %t68
  %t71 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t70, <4 x float> <float 0xBFE62E4000000000, float 0xBFE62E4000000000, float 0xBFE62E4000000000, float 0xBFE62E4000000000>, <4 x float> %t66)
  %t72 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t70, <4 x float> <float 0xBEB7F7D1C0000000, float 0xBEB7F7D1C0000000, float 0xBEB7F7D1C0000000, float 0xBEB7F7D1C0000000>, <4 x float> %t71)
  %t73 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> <float 0x3F56A24360000000, float 0x3F56A24360000000, float 0x3F56A24360000000, float 0x3F56A24360000000>, <4 x float> %t72, <4 x float> <float 0x3F81239E00000000, float 0x3F81239E00000000, float 0x3F81239E00000000, float 0x3F81239E00000000>)
  %t74 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t73, <4 x float> %t72, <4 x float> <float 0x3FA5558F20000000, float 0x3FA5558F20000000, float 0x3FA5558F20000000, float 0x3FA5558F20000000>)
  %t75 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t74, <4 x float> %t72, <4 x float> <float 0x3FC5554920000000, float 0x3FC5554920000000, float 0x3FC5554920000000, float 0x3FC5554920000000>)
  %t76 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t75, <4 x float> %t72, <4 x float> <float 0x3FDFFFFFC0000000, float 0x3FDFFFFFC0000000, float 0x3FDFFFFFC0000000, float 0x3FDFFFFFC0000000>)
  %t77 = fmul contract <4 x float> %t72, %t72
  %t78 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t76, <4 x float> %t77, <4 x float> %t72)
  %t79 = fadd contract <4 x float> %t78, <float 0x3FF0000000000000, float 0x3FF0000000000000, float 0x3FF0000000000000, float 0x3FF0000000000000>
  %t80 = bitcast <4 x float> %t69 to <4 x i32>
  %t81 = shl <4 x i32> %t80, <i32 23, i32 23, i32 23, i32 23>
  %t82 = bitcast <4 x i32> %t81 to <4 x float>
  %t83 = fmul contract <4 x float> %t79, %t82
  %t84 = select <4 x i1> %t67, <4 x float> <float 0x3E60000000000000, float 0x3E60000000000000, float 0x3E60000000000000, float 0x3E60000000000000>, <4 x float> <float 0x4000000000000000, float 0x4000000000000000, float 0x4000000000000000, float 0x4000000000000000>
  %t85 = fmul contract <4 x float> %t83, %t84
  %t86 = mul nsw i64 %t57, 16
  %t87 = getelementptr inbounds i8, ptr %p1, i64 %t86
  store <4 x float> %t85, ptr %t87, align 4
  br label %b59
b59:
  %t58 = add nsw i64 %t57, 1
  %t88 = icmp slt i64 %t58, %t53
  br i1 %t88, label %b54, label %b55
b55:
  ret void
}

define internal void @exp.body0.entry(ptr %closure, i64 %begin, i64 %end) #0 {
  %f0 = getelementptr {ptr, ptr, i64}, ptr %closure, i32 0, i32 0
  %v0 = load ptr, ptr %f0
  %f1 = getelementptr {ptr, ptr, i64}, ptr %closure, i32 0, i32 1
  %v1 = load ptr, ptr %f1
  %f2 = getelementptr {ptr, ptr, i64}, ptr %closure, i32 0, i32 2
  %v2 = load i64, ptr %f2
  call void @exp.body0(ptr %v0, ptr %v1, i64 %v2, i64 %begin, i64 %end)
  ret void
}

define internal void @exp.body0(ptr %c0, ptr %c1, i64 %c2, i64 %begin, i64 %end) #0 {
entry:
  %t3 = icmp slt i64 %begin, %end
  br i1 %t3, label %b1, label %b2
b1:
  %t4 = phi i64 [ %begin, %entry ], [ %t5, %b6 ]
  %t12 = mul nsw i64 %t4, 1024
  %t13 = getelementptr inbounds i8, ptr %c0, i64 %t12
  %t40 = mul nsw i64 %t4, 1024
  %t41 = getelementptr inbounds i8, ptr %c1, i64 %t40
  br label %b7
b7:
  %t9 = phi i64 [ 0, %b1 ], [ %t10, %b11 ]
  %t14 = mul nsw i64 %t9, 16
  %t15 = getelementptr inbounds i8, ptr %t13, i64 %t14
  %t16 = load <4 x float>, ptr %t15, align 4
  %t17 = fcmp ogt <4 x float> <float 0xC05A000000000000, float 0xC05A000000000000, float 0xC05A000000000000, float 0xC05A000000000000>, %t16
  %t18 = select <4 x i1> %t17, <4 x float> <float 0xC05A000000000000, float 0xC05A000000000000, float 0xC05A000000000000, float 0xC05A000000000000>, <4 x float> %t16
  %t19 = fcmp olt <4 x float> <float 0x4056400000000000, float 0x4056400000000000, float 0x4056400000000000, float 0x4056400000000000>, %t18
  %t20 = select <4 x i1> %t19, <4 x float> <float 0x4056400000000000, float 0x4056400000000000, float 0x4056400000000000, float 0x4056400000000000>, <4 x float> %t18
  %t21 = fcmp olt <4 x float> %t20, <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>
  %t22 = select <4 x i1> %t21, <4 x float> <float 0x4168001300000000, float 0x4168001300000000, float 0x4168001300000000, float 0x4168001300000000>, <4 x float> <float 0x4168000FC0000000, float 0x4168000FC0000000, float 0x4168000FC0000000, float 0x4168000FC0000000>
  %t23 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t20, <4 x float> <float 0x3FF7154760000000, float 0x3FF7154760000000, float 0x3FF7154760000000, float 0x3FF7154760000000>, <4 x float> %t22)
  %t24 = fsub contract <4 x float> %t23, %t22
  %t25 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t24, <4 x float> <float 0xBFE62E4000000000, float 0xBFE62E4000000000, float 0xBFE62E4000000000, float 0xBFE62E4000000000>, <4 x float> %t20)
  %t26 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t24, <4 x float> <float 0xBEB7F7D1C0000000, float 0xBEB7F7D1C0000000, float 0xBEB7F7D1C0000000, float 0xBEB7F7D1C0000000>, <4 x float> %t25)
  %t27 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> <float 0x3F56A24360000000, float 0x3F56A24360000000, float 0x3F56A24360000000, float 0x3F56A24360000000>, <4 x float> %t26, <4 x float> <float 0x3F81239E00000000, float 0x3F81239E00000000, float 0x3F81239E00000000, float 0x3F81239E00000000>)
  %t28 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t27, <4 x float> %t26, <4 x float> <float 0x3FA5558F20000000, float 0x3FA5558F20000000, float 0x3FA5558F20000000, float 0x3FA5558F20000000>)
  %t29 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t28, <4 x float> %t26, <4 x float> <float 0x3FC5554920000000, float 0x3FC5554920000000, float 0x3FC5554920000000, float 0x3FC5554920000000>)
  %t30 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t29, <4 x float> %t26, <4 x float> <float 0x3FDFFFFFC0000000, float 0x3FDFFFFFC0000000, float 0x3FDFFFFFC0000000, float 0x3FDFFFFFC0000000>)
  %t31 = fmul contract <4 x float> %t26, %t26
  %t32 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t30, <4 x float> %t31, <4 x float> %t26)
  %t33 = fadd contract <4 x float> %t32, <float 0x3FF0000000000000, float 0x3FF0000000000000, float 0x3FF0000000000000, float 0x3FF0000000000000>
  %t34 = bitcast <4 x float> %t23 to <4 x i32>
  %t35 = shl <4 x i32> %t34, <i32 23, i32 23, i32 23, i32 23>
  %t36 = bitcast <4 x i32> %t35 to <4 x float>
  %t37 = fmul contract <4 x float> %t33, %t36
  %t38 = select <4 x i1> %t21, <4 x float> <float 0x3E60000000000000, float 0x3E60000000000000, float 0x3E60000000000000, float 0x3E60000000000000>, <4 x float> <float 0x4000000000000000, float 0x4000000000000000, float 0x4000000000000000, float 0x4000000000000000>
  %t39 = fmul contract <4 x float> %t37, %t38
  %t42 = mul nsw i64 %t9, 16
  %t43 = getelementptr inbounds i8, ptr %t41, i64 %t42
  store <4 x float> %t39, ptr %t43, align 4
  br label %b11
b11:
  %t10 = add nsw i64 %t9, 1
  %t44 = icmp slt i64 %t10, 64
  br i1 %t44, label %b7, label %b8
b8:
  br label %b6
b6:
  %t5 = add nsw i64 %t4, 1
  %t45 = icmp slt i64 %t5, %end
  br i1 %t45, label %b1, label %b2
b2:
  ret void
}

declare <4 x float> @llvm.fmuladd.v4f32(<4 x float>, <4 x float>, <4 x float>)
declare void @kiln_parallel_for(ptr, ptr, i64)

!0 = !{i32 1}

attributes #0 = { "target-cpu"="x86-64" "target-features"="-adx,-aes,-amx-avx512,-amx-bf16,-amx-complex,-amx-fp16,-amx-fp8,-amx-int8,-amx-movrs,-amx-tf32,-amx-tile,-avx,-avx10.1,-avx10.2,-avx2,-avx512bf16,-avx512bitalg,-avx512bw,-avx512cd,-avx512dq,-avx512f,-avx512fp16,-avx512ifma,-avx512vbmi,-avx512vbmi2,-avx512vl,-avx512vnni,-avx512vp2intersect,-avx512vpopcntdq,-avxifma,-avxneconvert,-avxvnni,-avxvnniint16,-avxvnniint8,-bmi,-bmi2,-ccmp,-cf,-cldemote,-clflushopt,-clwb,-clzero,+cmov,-cmpccxadd,-crc32,-cx16,+cx8,-egpr,-enqcmd,-f16c,-fma,-fma4,-fsgsbase,+fxsr,-gfni,-hreset,-invpcid,-kl,-lwp,-lzcnt,+mmx,-movbe,-movdir64b,-movdiri,-movrs,-mwaitx,-ndd,-nf,-pclmul,-pconfig,-pku,-popcnt,-ppx,-prefetchi,-prfchw,-ptwrite,-push2pop2,-raoint,-rdpid,-rdpru,-rdrnd,-rdseed,-rtm,-sahf,-serialize,-sgx,-sha,-sha512,-shstk,-sm3,-sm4,+sse,+sse2,-sse3,-sse4.1,-sse4.2,-sse4a,-ssse3,-tbm,-tsxldtrk,-uintr,-usermsr,-vaes,-vpclmulqdq,-waitpkg,-wbnoinvd,-widekl,-xop,-xsave,-xsavec,-xsaveopt,-xsaves,-zu" }

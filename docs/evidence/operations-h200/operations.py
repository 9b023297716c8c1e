import torch as t,torch.nn.functional as F
t.backends.cuda.matmul.allow_tf32=t.backends.cudnn.allow_tf32=True
H,L,S=t.bfloat16,t.float16,t.float32
N={H:'bf16',L:'fp16',S:'tf32'}
R=lambda *s,d:t.randn(s,device='cuda',dtype=d)
def ms(f,n=4):
 for _ in range(2):f()
 for _ in 1,2:
  a,b=(t.cuda.Event(enable_timing=True) for _ in 'ab');a.record()
  for _ in range(n):f()
  b.record();t.cuda.synchronize();e=a.elapsed_time(b)/n;n=max(4,int(60/e))
 return e
def show(n,fl,f,i,k=2):
 try:
  i=[x.requires_grad_() for x in i];o=f(*i);g=t.randn_like(o);a=ms(lambda:f(*i));b=ms(lambda:t.autograd.grad(o,i,g,retain_graph=True))
  print(n,'fwd %.1f bwd %.1f TFLOP/s %.3f %.3f ms'%(fl/a/1e9,k*fl/b/1e9,a,b),flush=True)
 except Exception as e:print(n,repr(e)[:80])
print(t.cuda.get_device_name())
for d in N:
 for r,i,o in [(32768,768,3072),(32768,1024,4096),(32768,4096,1024),(2048,1024,4096)]:show(f'mm {N[d]} {r} {i} {o}',2*r*i*o,F.linear,[R(r,i,d=d),R(o,i,d=d)])
 for n,c,o,s,k,p in [(64,3,1024,224,16,16),(64,256,512,56,2,2),(64,1024,2048,14,2,2),(64,3,192,224,4,4)]:
  for last in 0,1:
   x=R(n,c,s,s,d=d)
   if last:x=x.to(memory_format=t.channels_last)
   show(f'conv {N[d]} last{last} {c} {o} {s} k{k}',2*n*o*c*(s//p*k)**2,lambda x,w:F.conv2d(x,w,stride=p),[x,R(o,c,k,k,d=d)])
 for n,c,o,l,k,p,g in [(32,1,512,16000,10,5,1),(32,512,512,3199,3,2,1),(32,512,512,199,2,2,1),(32,768,768,49,128,1,16),(32,80,768,3000,3,1,1)]:
  q=k//2 if p==1 else 0
  show(f'conv1d {N[d]} {c} {o} {l} k{k} g{g}',2*n*o*c//g*k*((l+2*q-k)//p+1),lambda x,w:F.conv1d(x,w,stride=p,padding=q,groups=g),[R(n,c,l,d=d),R(o,c//g,k,d=d)])
